"""What the routes share: the service, the text side of the model, the settings and the metrics. Decides nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strata.engine.messages import ModelFacts
from strata.server.asking import sampling_defaults
from strata.server.metrics import Metrics
from strata.server.service import EngineService
from strata.server.text_side import TextSide
from strata.settings import Settings


@dataclass
class Parts:
    """Of one server. The text side comes with the loaded model."""

    service: EngineService
    settings: Settings
    metrics: Metrics
    text: TextSide | None = None
    addresses: tuple[str, ...] = field(default_factory=tuple)

    @property
    def model_name(self) -> str:
        """Under which clients know the model."""
        facts = self.service.facts
        return self.settings.server.served_name or (facts.name if facts is not None else "strata")

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """Options of a request that says nothing. ApiError 503 while no model is loaded."""
        _, facts = self.loaded()
        return sampling_defaults(facts.recommended_sampling, self.settings)

    def loaded(self) -> tuple[TextSide, ModelFacts]:
        """Text and facts of the model. ApiError 503 while it is not loaded."""
        if self.text is None or self.service.facts is None:
            raise self.service.condition.refusal()
        return self.text, self.service.facts
