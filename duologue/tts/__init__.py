"""Decoupled voices: text to waveform with the time of every word."""
