"""Speech tokens to sound: the flow and HiFT vocoder of Step-Audio 2."""
