"""WebRTC's voice activity detector (a Gaussian mixture on band energies) as a pipecat analyzer."""

from pipecat.audio.vad.vad_analyzer import VADAnalyzer, VADParams

from duologue.errors import ConfigError, EngineError

FRAME_S = 0.02
RATES_HZ = (8_000, 16_000, 32_000, 48_000)


class WebRTCVADAnalyzer(VADAnalyzer):
    """Says yes or no to every 20 ms: a hundred times cheaper than Silero, and easier to fool.

    Its confidence is 0.0 or 1.0, so `params.confidence` changes nothing between the two.

    Args:
        aggressiveness: 0 to 3. Below 3 a fan is speech, and the turn never ends.
        sample_rate: Hz, one of 8, 16, 32 or 48 k; None takes the pipeline's.
        params: When speech counts as started and as stopped.

    Raises:
        ConfigError: an aggressiveness that the detector does not have.
        EngineError: webrtcvad is not installed.
    """

    def __init__(
        self,
        *,
        aggressiveness: int = 3,
        sample_rate: int | None = None,
        params: VADParams | None = None,
    ):
        super().__init__(sample_rate=sample_rate, params=params)
        try:
            import webrtcvad
        except ImportError as error:
            raise EngineError(
                f"vad.engine webrtcvad cannot run ({error}); "
                "`pip install -e '.[webrtcvad]'`, or set vad.engine to silero"
            ) from error
        if aggressiveness not in range(4):
            raise ConfigError(f"aggressiveness is {aggressiveness!r}, expected 0, 1, 2 or 3")
        self._vad = webrtcvad.Vad(aggressiveness)

    def set_sample_rate(self, sample_rate: int):
        """Take the pipeline's rate, unless one was given.

        Raises:
            ConfigError: a rate that the detector does not take.
        """
        rate_hz = self._init_sample_rate or sample_rate
        if rate_hz not in RATES_HZ:
            raise ConfigError(
                f"vad.engine webrtcvad was given {rate_hz} Hz, expected one of "
                f"{', '.join(map(str, RATES_HZ))}; set vad.engine to silero, or change the rate"
            )
        super().set_sample_rate(sample_rate)

    def num_frames_required(self) -> int:
        """Samples in 20 ms."""
        return round(self.sample_rate * FRAME_S)

    def voice_confidence(self, buffer: bytes) -> float:
        """1.0 if 20 ms of 16-bit mono PCM sound like speech, else 0.0."""
        return float(self._vad.is_speech(buffer, self.sample_rate))
