"""The talker of the embedded voice (`duologue.talker`): the bytes of a clause in, its codes out."""

from duologue.lm.formats.profile import Codebook, Kind, Profile, Special
from duologue.lm.modes import Mode
from duologue.talker.config import CODES, END, FIRST_CODE, TEXT

DUOLOGUE_TALKER = Profile(
    family="duologue-talker",
    modes=(Mode.T1_A1,),
    text_ids=TEXT,
    codebooks=(Codebook("duologue-25", CODES, 25, None, FIRST_CODE),),
    specials=(Special(None, Kind.END, (END,)),),
    speech_from_start=True,
)
