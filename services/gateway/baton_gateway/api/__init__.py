"""Routes of the gateway, one router per file."""

from __future__ import annotations

from fastapi import APIRouter

from baton_gateway.api import (
    admin,
    chat,
    classify,
    completions,
    embeddings,
    explain,
    fleet,
    health,
    images,
    models,
    pooling,
    rerank,
    score,
    streams,
)
from baton_gateway.api.anthropic import batches as message_batches
from baton_gateway.api.anthropic import messages
from baton_gateway.api.audio import speech
from baton_gateway.api.batches import batches, chat_batch, files, uploads
from baton_gateway.api.cohere import embed
from baton_gateway.api.operator import adapters, pause, profile, server_info, sleep, weights
from baton_gateway.api.prompts import quote, render, tokenize
from baton_gateway.api.realtime import realtime
from baton_gateway.api.responses import conversations, responses

ROUTERS: tuple[APIRouter, ...] = (
    chat.router,
    chat_batch.router,
    completions.router,
    messages.router,
    responses.router,
    conversations.router,
    embeddings.router,
    embed.router,
    score.router,
    rerank.router,
    classify.router,
    pooling.router,
    images.router,
    speech.router,
    realtime.router,
    files.router,
    uploads.router,
    batches.router,
    message_batches.router,
    models.router,
    tokenize.router,
    render.router,
    quote.router,
    streams.router,
    explain.router,
    health.router,
    fleet.router,
    adapters.router,
    pause.router,
    sleep.router,
    profile.router,
    server_info.router,
    weights.router,
    admin.router,
)
