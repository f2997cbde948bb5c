"""A scripted caller's data and analysis: what to say when, what happened, what the figures are."""
