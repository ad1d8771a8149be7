"""The communication ledger: cost is what was sent."""

from dataclasses import dataclass, field

from .blocks import Slot

COLUMNS = ("round", "client", "block", "direction", "key", "floats", "bits")


@dataclass
class Ledger:
    """Floats and bits per client, round, key and direction ("up", "down"), read off the tensors that were sent."""

    rows: list[tuple] = field(default_factory=list)  # one tuple of COLUMNS for each payload

    def post(self, round: int, slot: Slot, direction: str, message: dict) -> None:
        """Enter one message of payloads."""
        for key, payload in message.items():
            self.rows.append((round, slot.client, slot.block, direction, key, payload.floats, payload.bits))

    def sum(self, column: str, direction: str, **where) -> float:
        """A column's sum over a direction and whatever else is fixed: sum("floats", "up", round=3, client=7)."""
        fixed = [(COLUMNS.index(name), value) for name, value in {"direction": direction, **where}.items()]
        return sum(row[COLUMNS.index(column)] for row in self.rows if all(row[i] == value for i, value in fixed))

    def totals(self) -> dict[tuple[str, str], tuple[float, int]]:
        """(floats, bits) of the whole run for each (direction, key)."""
        totals: dict[tuple[str, str], tuple[float, int]] = {}
        for *_, direction, key, floats, bits in self.rows:
            before = totals.get((direction, key), (0, 0))
            totals[direction, key] = (before[0] + floats, before[1] + bits)
        return totals
