"""Outputs of all chunks of a recording, regenerated at higher temperatures until they are good
enough, if the request asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import structs
from starlette.requests import Request

from baton_gateway.api.audio.speech_job import SpeechJob
from baton_gateway.api.collect_answer import collect
from baton_gateway.generation.choice import Choice
from baton_gateway.generation.request import GenerationRequest, RequestSinks
from baton_gateway.schemas.audio.speech_request import SpeechRequest
from baton_gateway.speech.fallback import FallbackRules


@dataclass(frozen=True, slots=True)
class ChunkOutput:
    """Output of a chunk."""

    choice: Choice
    temperature: float
    no_speech: float
    """Probability of no speech; 0 if it was not computed."""

    @property
    def logprobs(self) -> list[float]:
        """Log-probabilities of its tokens."""
        return [entry.logprob for entry in self.choice.logprobs]

    def fails(self, rules: FallbackRules) -> bool:
        """Whether it must be regenerated."""
        return rules.fails(self.choice.text, self.logprobs, self.no_speech)

    def silent(self, rules: FallbackRules) -> bool:
        """Whether it is left out, as silence."""
        return rules.silent(self.logprobs, self.no_speech)


async def chunk_outputs(
    request: Request, job: SpeechJob, work: GenerationRequest
) -> list[ChunkOutput]:
    """Run `work`, which has one prompt per chunk. Outputs that are silence have no text."""
    rules, first = _rules(job.body), job.body.temperature
    _, choices = await collect(request, work)
    needed = rules.no_speech is not None or job.body.response_format == "verbose_json"
    silence = await job.no_speech_probabilities() if needed else [0.0] * len(choices)
    pairs = zip(choices, silence, strict=True)
    outputs = [ChunkOutput(choice, first, silent) for choice, silent in pairs]
    for temperature in rules.temperatures(first):
        bad = [number for number, output in enumerate(outputs) if output.fails(rules)]
        if not bad:
            break
        _, choices = await collect(request, _again(work, bad, temperature))
        for number, choice in zip(bad, choices, strict=True):
            outputs[number] = replace(outputs[number], choice=choice, temperature=temperature)
    return [_emptied(one) if one.silent(rules) else one for one in outputs]


def _rules(body: SpeechRequest) -> FallbackRules:
    return FallbackRules(
        body.compression_ratio_threshold,
        body.logprob_threshold,
        body.no_speech_threshold,
        body.temperature_increment_on_fallback,
    )


def _again(work: GenerationRequest, chunks: Sequence[int], temperature: float) -> GenerationRequest:
    """`work` for the prompts of `chunks` alone."""
    params = structs.replace(work.sampling.params, temperature=temperature)
    return replace(
        work,
        prompts=tuple(work.prompts[number] for number in chunks),
        sampling=replace(work.sampling, params=params),
        sinks=RequestSinks(timeline=work.sinks.timeline),
    )


def _emptied(output: ChunkOutput) -> ChunkOutput:
    return replace(output, choice=Choice(reason=output.choice.reason))
