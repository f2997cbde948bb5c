"""Pure functions on audio: PCM, resampling, mel."""
