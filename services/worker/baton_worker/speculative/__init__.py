"""Speculative decoding: drafts are kept if sampling would have given the same tokens.

A target token is a function of (request, token log): its noise is keyed by the seed and its index.
So a draft is verified by sampling at its position and comparing (Daliri, Musco, Suresh 2024,
arXiv:2408.07978), and the log is the same with any proposer and with none.
"""

from __future__ import annotations

from baton.registry import Registry

PROPOSERS = Registry(
    "proposers",
    {
        "ngram": "baton_worker.speculative.ngram:NgramProposer",
        "draft_model": "baton_worker.drafters.draft_model:DraftModelProposer",
        "suffix": "baton_worker.speculative.suffix:SuffixProposer",
        "medusa": "baton_worker.drafters.state_head:StateHeadProposer",
        "mlp_speculator": "baton_worker.drafters.state_head:StateHeadProposer",
        "mtp": "baton_worker.drafters.prediction_layers:mtp_proposer",
        "eagle": "baton_worker.drafters.layer_head:LayerHeadProposer",
        "eagle3": "baton_worker.drafters.layer_head:LayerHeadProposer",
        "eagle3_two_model": "baton_worker.drafters.two_model:TwoModelProposer",
    },
)
"""Proposers by the method that `--speculative-config` names: called with a
`baton_worker.speculative.proposer.ProposerContext`, they return a `Proposer`. A package adds one
through the entry-point group `baton.proposers`."""

DRAFT_WEIGHTS = Registry(
    "draft_weights",
    {
        "draft_model": "baton_worker.drafters.draft_model_weights:load_draft_model",
        "medusa": "baton_worker.drafters.draft_head_weights:load_draft_head",
        "mlp_speculator": "baton_worker.drafters.draft_head_weights:load_draft_head",
        "mtp": "baton_worker.drafters.draft_head_weights:load_draft_head",
        "eagle": "baton_worker.drafters.draft_head_weights:load_draft_head",
        "eagle3": "baton_worker.drafters.draft_head_weights:load_draft_head",
        "eagle3_two_model": "baton_worker.drafters.draft_head_weights:load_draft_head",
    },
)
"""Methods with weights of their own: what loads these before the pages are sized, called with a
`baton_worker.speculative.proposer.WeightsContext`; it returns `DraftWeights`."""
