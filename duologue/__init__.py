"""duologue: the core of a real-time, duplex voice chatbot pipeline."""
