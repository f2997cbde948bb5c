"""pipecat frame processors, one class a file."""
