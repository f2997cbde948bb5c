"""What a person starts: one file per way to talk to the bot."""
