"""Bots and speech on Modal; docs/deploy.md says how. Never run on Modal's cloud."""
