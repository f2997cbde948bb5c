"""What pipecat wants to know of an LM service's sampling."""

from pipecat.services.settings import LLMSettings

from duologue.lm.engine import Request


def lm_settings(model: str, defaults: Request) -> LLMSettings:
    """Settings of a service whose requests are sampled as `defaults` says."""
    return LLMSettings(
        model=model,
        system_instruction=None,
        temperature=defaults.temperature,
        max_tokens=defaults.max_tokens,
        top_p=None,
        top_k=None,
        frequency_penalty=None,
        presence_penalty=None,
        seed=None,
        filter_incomplete_user_turns=False,
        user_turn_completion_config=None,
    )
