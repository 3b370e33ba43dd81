"""Gradio, its reports of use switched off before it is imported; the page imports it from here alone."""

import os

# Read by Gradio and by the hub's client when they are imported.
os.environ.update(GRADIO_ANALYTICS_ENABLED="False", HF_HUB_DISABLE_TELEMETRY="1", DO_NOT_TRACK="1")

import gradio as gr

__all__ = ["gr"]
