"""Makes the embedded voice: a teacher's speech, and tokenizer, flow, vocoder, talker from it."""
