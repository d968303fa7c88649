"""What travels and what is computed, counted at the engine's verbs, for every method alike."""

from dataclasses import dataclass, field


@dataclass
class Ledger:
    """Traffic by purpose. One float of a float32 model is four bytes; framing is not counted."""

    messages: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    samples: int = 0  # training samples that gradients were taken of, over all clients and models

    def add(self, purpose: str, messages: int, bytes_each: int) -> None:
        """Count `messages` messages of `bytes_each` bytes."""
        self.messages[purpose] = self.messages.get(purpose, 0) + messages
        self.bytes[purpose] = self.bytes.get(purpose, 0) + messages * bytes_each

    def add_samples(self, samples: int) -> None:
        """Count gradients of so many training samples."""
        self.samples += samples

    @property
    def total_messages(self) -> int:
        return sum(self.messages.values())

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes.values())

    def close_round(self) -> "Ledger":
        """The traffic since the last call; counting starts again."""
        closed = Ledger(dict(self.messages), dict(self.bytes), self.samples)
        self.messages.clear()
        self.bytes.clear()
        self.samples = 0
        return closed
