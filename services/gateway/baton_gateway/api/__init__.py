"""Every route of the gateway, one router per file."""

from __future__ import annotations

from fastapi import APIRouter

from baton_gateway.api import admin, chat, completions, fleet, health, models, tokenize

ROUTERS: tuple[APIRouter, ...] = (
    chat.router,
    completions.router,
    models.router,
    tokenize.router,
    health.router,
    fleet.router,
    admin.router,
)
