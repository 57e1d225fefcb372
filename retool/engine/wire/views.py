"""What the control plane's replies look like: the fields that the SDK 0.2.9 reads."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from starlette.requests import Request

from retool.engine.types import LoraSpec
from retool.engine.wire.checkpoints import Checkpoint, CheckpointKind
from retool.engine.wire.runs import SamplingRun, Session, TrainingRun

if TYPE_CHECKING:
    from retool.engine.wire.service import Service

WORKSPACE = "workspace-local"
MODEL_SPEC = "model-local"
ACTOR = "actor-local"
_NEVER = "2099-01-01T00:00:00+00:00"

ACCOUNT = {
    "api_key_tid": "key-local",
    "api_key_name": None,
    "user_cuid": "user-local",
    "username": "local",
    "display_name": None,
    "workspace_cuid": WORKSPACE,
    "workspace_name": "local",
    "workspace_type": "PERSON",
    "expires_at": None,
}


def limits(service: "Service") -> dict[str, object]:
    """Limits of one request; the SDK splits larger batches."""
    longest = service.engine.max_seq_len
    return {
        "max_batch_size": None,
        "max_tokens_per_request": max(service.settings.max_tokens_per_request, longest),
        "max_seq_len": longest,
    }


def model(service: "Service") -> dict[str, object]:
    """The served base model."""
    started = service.started_at.isoformat()
    return {
        "cuid": MODEL_SPEC,
        "alias": service.names[0],
        "model_id": service.engine.model_id,
        "context_length": service.engine.max_seq_len,
        "train_available": True,
        "sample_available": True,
        "trainer": limits(service),
        "sampler": limits(service),
        "created_at": started,
        "updated_at": started,
    }


def session(session: Session) -> dict[str, object]:
    """A session and its runs."""
    return {
        "service_session_cuid": session.id,
        "workspace_cuid": WORKSPACE,
        "status": session.status,
        "sdk_version": session.sdk_version,
        "training_run_cuids": session.training_runs,
        "sampling_run_cuids": session.sampling_runs,
        "created_at": session.created_at.isoformat(),
        "updated_at": session.updated_at.isoformat(),
    }


def lora(spec: LoraSpec, seed: int | None = None) -> dict[str, object]:
    """An adapter's shape."""
    return {
        "lora_rank": spec.rank,
        "seed": spec.seed if seed is None else seed,
        "train_mlp": spec.train_mlp,
        "train_attn": spec.train_attn,
        "train_unembed": spec.train_unembed,
    }


def training_run(service: "Service", run: TrainingRun) -> dict[str, object]:
    """A training run with the limits of its requests."""
    shape = lora(run.lora, run.seed)
    return {
        "training_run_cuid": run.id,
        "service_session_cuid": run.session_id,
        "workspace_cuid": WORKSPACE,
        "status": run.status,
        "run_index": run.index,
        "model_spec_cuid": MODEL_SPEC,
        "model_alias": service.names[0],
        "model_id": service.engine.model_id,
        "base_model": service.engine.model_id,
        "trainer": limits(service),
        "is_lora": True,
        "source_checkpoint_uri": run.source_uri or None,
        "restore_optimizer": run.restore_optimizer,
        **shape,
        "corrupted": False,
        "training_params": {"restore_optimizer": run.restore_optimizer, **shape},
        "created_at": run.created_at.isoformat(),
        "started_at": run.started_at and run.started_at.isoformat(),
        "ended_at": run.ended_at and run.ended_at.isoformat(),
        "updated_at": run.updated_at.isoformat(),
    }


def sampling_run(service: "Service", run: SamplingRun) -> dict[str, object]:
    """A sampling run with the limits of its requests."""
    return {
        "sampling_run_cuid": run.id,
        "service_session_cuid": run.session_id,
        "workspace_cuid": WORKSPACE,
        "status": "RUNNING",
        "run_index": run.index,
        "model_spec_cuid": MODEL_SPEC,
        "model_alias": service.names[0],
        "model_id": service.engine.model_id,
        "alias": service.names[0],
        "base_model": service.engine.model_id,
        "sampler": limits(service),
        "source_checkpoint_uri": run.source_uri or None,
        "created_at": run.created_at.isoformat(),
        "updated_at": run.created_at.isoformat(),
    }


def access(request: Request, service: "Service", run_id: str) -> dict[str, object]:
    """Where a run's actor listens, which is this server, and the credential for it."""
    return {
        "actor": {
            "actor_cuid": ACTOR,
            "endpoint": server_url(request),
            "connect_mode": "DIRECT",
            "tls_enabled": request.url.scheme == "https",
        },
        "actor_jwt": {"token": service.keyring.issue(run_id), "expires_at": _NEVER},
    }


def checkpoint(service: "Service", checkpoint: Checkpoint) -> dict[str, object]:
    """A saved adapter."""
    created = checkpoint.created_at.isoformat()
    return {
        "cuid": checkpoint.id,
        "checkpoint_cuid": checkpoint.id,
        "training_run_cuid": checkpoint.run_id,
        "workspace_cuid": WORKSPACE,
        "name": checkpoint.name,
        "checkpoint_type": "TRAINING" if checkpoint.kind is CheckpointKind.STATE else "SAMPLER",
        "status": "LOCAL",
        "checkpoint_uri": checkpoint.uri,
        "model": service.names[0],
        "base_model": checkpoint.base_model,
        "model_spec_cuid": MODEL_SPEC,
        "task_id": checkpoint.run_id,
        "task_created_at": created,
        "task_status": "SUCCEEDED",
        "path": str(checkpoint.directory),
        "created_at": created,
        "size_bytes": checkpoint.size_bytes,
        "lora_rank": checkpoint.lora.rank,
        "is_uploaded": False,
        "expired_at": checkpoint.expires_at and checkpoint.expires_at.isoformat(),
    }


def download(url: str, lifetime_s: float) -> dict[str, object]:
    """Where to fetch an archive."""
    return {
        "url": url,
        "expires_at": (datetime.now(UTC) + timedelta(seconds=lifetime_s)).isoformat(),
        "source": "actor",
        "checkpoint_status": "LOCAL",
        "tls_cert_pem": None,
        "tls_not_after": None,
    }


def server_url(request: Request) -> str:
    """This server as the client addressed it."""
    return str(request.base_url).rstrip("/")
