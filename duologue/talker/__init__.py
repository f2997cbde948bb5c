"""The talker of the embedded voice: a small causal LM from text to speech tokens."""
