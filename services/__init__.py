"""pipecat services: thin adapters over the core or over a client."""
