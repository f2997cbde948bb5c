"""Where the bots and the servers run: wiring only."""
