"""SGLang's ``torch_native`` attention backend, replaced by our float32 reference.

Stock ``TorchNativeAttnBackend`` (sglang 0.5.23, srt/layers/attention/torch_native_backend.py)
writes fp8 without ``k_scale``/``v_scale``, reads without them, computes in the query's dtype and
loops over requests. This one applies the scales on both sides, saturates, computes in float32 and
pads decode batches.
"""

import logging
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MHATokenToKVPool, MLATokenToKVPool

from equipoise.kernels.formats import cast_float8, format_of
from equipoise.quant.sglang.attention import (
    DecodeGroup,
    KVRows,
    attend_decode,
    attend_extend,
    plan_decode,
    read_rows,
)
from equipoise.quant.sglang.kv_controls import KVPart, build_control
from equipoise.quant.sglang.layout_pool import LayoutPool

logger = logging.getLogger(__name__)

__all__ = ["ReferenceAttentionBackend"]

SUPPORTED_POOLS = (MHATokenToKVPool, MLATokenToKVPool)


class ReferenceAttentionBackend(AttentionBackend):  # type: ignore[misc]  # sglang is untyped here
    """Float32 attention over SGLang's own paged pools, for GQA and absorbed MLA."""

    def __init__(self, runner: Any, *, control: str | None, layout: str | None = None) -> None:
        super().__init__()
        self.req_to_token_pool = runner.req_to_token_pool
        self.token_to_kv_pool = runner.token_to_kv_pool
        pool = self.token_to_kv_pool
        if type(pool) not in SUPPORTED_POOLS:
            raise NotImplementedError(
                f"the CPU reference attention knows {[p.__name__ for p in SUPPORTED_POOLS]}, "
                f"not {type(pool).__name__}: serve this model on a GPU"
            )
        self.mla = isinstance(pool, MLATokenToKVPool)
        self.kv_lora_rank = pool.kv_lora_rank if self.mla else 0
        self.float8 = format_of(pool.dtype)
        parts: tuple[KVPart, ...] = ("latent", "rope") if self.mla else ("k", "v")
        self.control = None
        if control is not None:
            if self.float8 is not None:
                raise ValueError(
                    f"--kv-control {control} plants its fault in a bfloat16 cache: drop --kv-cache-dtype"
                )
            self.control = build_control(
                control,
                model_path=runner.server_args.model_path,
                parts=parts,
                num_layers=runner.model_config.num_hidden_layers,
            )
            logger.warning("KV CONTROL %s: this server's KV cache is damaged on purpose", control)
        self.layout_pool = None
        if layout is not None:
            self.layout_pool = LayoutPool(
                layout,
                pool,
                mla=self.mla,
                model_path=runner.server_args.model_path,
                num_layers=runner.model_config.num_hidden_layers,
            )
            logger.warning("%s", self.layout_pool.describe())
        self._groups: list[DecodeGroup] = []
        self._slots: list[torch.Tensor] = []
        self._checked: set[int] = set()
        logger.info(
            "equipoise reference attention: pool %s, dtype %s, %s, control %s, layout %s",
            type(pool).__name__,
            pool.dtype,
            "absorbed MLA" if self.mla else "GQA",
            control,
            layout,
        )

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Look up the cache slots once a forward pass, for all layers."""
        table = self.req_to_token_pool.req_to_token
        lengths = forward_batch.seq_lens_cpu.tolist()
        if forward_batch.forward_mode.is_decode():
            self._groups = plan_decode(table, forward_batch.req_pool_indices, lengths)
        else:
            requests = forward_batch.req_pool_indices.tolist()
            self._slots = [table[r, :n].to(torch.int64) for r, n in zip(requests, lengths, strict=True)]

    def forward_decode(  # noqa: PLR0917  AttentionBackend's own signature
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **unknown: Any,
    ) -> torch.Tensor:
        """[tokens, heads * qk_head_dim] -> [tokens, heads * v_head_dim], one token a request."""
        self._check(layer, unknown)
        if save_kv_cache:
            self._write(layer, forward_batch, k, v)
        queries = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim).to(torch.float32)
        out = q.new_empty((queries.shape[0], layer.tp_q_head_num, layer.v_head_dim))
        for group in self._groups:
            rows = self._read(layer, group.slots)
            attended = attend_decode(queries[group.requests], rows, scaling=layer.scaling, mask=group.mask)
            out[group.requests] = attended.to(out.dtype)
        return out.flatten(1)

    def forward_extend(  # noqa: PLR0917  AttentionBackend's own signature
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **unknown: Any,
    ) -> torch.Tensor:
        """The same for prefill: each request's new tokens attend to its whole cached context."""
        self._check(layer, unknown)
        if save_kv_cache:
            self._write(layer, forward_batch, k, v)
        queries = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = q.new_empty((queries.shape[0], layer.tp_q_head_num, layer.v_head_dim))
        causal = layer.attn_type == AttentionType.DECODER
        first = 0
        for slots, n in zip(self._slots, forward_batch.extend_seq_lens_cpu, strict=True):
            new = queries[first : first + n].to(torch.float32)
            attended = attend_extend(new, self._read(layer, slots), scaling=layer.scaling, causal=causal)
            out[first : first + n] = attended
            first += n
        return out.flatten(1)

    def support_triton(self) -> bool:
        return False

    def _write(self, layer: Any, forward_batch: Any, k: torch.Tensor | None, v: torch.Tensor | None) -> None:
        """Store this step's keys and values as the pool's dtype (and control, or layout) would have them."""
        if k is None or v is None:
            return
        if self.layout_pool is not None:
            self.layout_pool.write(layer.layer_id, forward_batch.out_cache_loc, k, v)
            return
        if self.float8 is not None:
            k = cast_float8(k, self.float8, scale=_descale(layer.k_scale))
            v = k if self.mla else cast_float8(v, self.float8, scale=_descale(layer.v_scale))
        elif self.control is not None:
            k, v = self._apply_control(layer.layer_id, k, v, forward_batch.positions)
        self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc), k, v)

    def _apply_control(
        self, layer_id: int, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.control is not None
        dtype = self.token_to_kv_pool.dtype
        if not self.mla:
            k = self.control(layer_id, "k", k, positions)
            v = self.control(layer_id, "v", v, positions)
            return k.to(dtype), v.to(dtype)
        latent, rope = k[..., : self.kv_lora_rank], k[..., self.kv_lora_rank :]
        row = torch.cat(
            [
                self.control(layer_id, "latent", latent, positions),
                self.control(layer_id, "rope", rope, positions),
            ],
            dim=-1,
        ).to(dtype)
        return row, row

    def _read(self, layer: Any, slots: torch.Tensor) -> KVRows:
        pool = self.token_to_kv_pool
        if self.layout_pool is not None:
            return self.layout_pool.read(layer.layer_id, slots)
        return read_rows(
            pool.get_key_buffer(layer.layer_id),
            None if self.mla else pool.get_value_buffer(layer.layer_id),
            slots,
            v_head_dim=layer.v_head_dim,
            k_scale=_descale(layer.k_scale),
            v_scale=_descale(layer.v_scale),
        )

    def _check(self, layer: Any, unknown: dict[str, Any]) -> None:
        """Refuse, once a layer, what would silently be computed wrongly."""
        if unknown:
            raise NotImplementedError(
                f"layer {layer.layer_id} passes {sorted(unknown)} to attention: not in the CPU reference"
            )
        if layer.layer_id in self._checked:
            return
        self._checked.add(layer.layer_id)
        reasons = {
            "cross attention": layer.is_cross_attention,
            "a sliding window": layer.sliding_window_size is not None and layer.sliding_window_size > -1,
            "a logit cap": layer.logit_cap,
            "an attention temperature": layer.xai_temperature_len > 0,
        }
        found = [name for name, present in reasons.items() if present]
        if found:
            raise NotImplementedError(
                f"layer {layer.layer_id} uses {found[0]}, which the CPU reference attention lacks: "
                "serve this model on a GPU"
            )
        scales = (_descale(layer.k_scale), _descale(layer.v_scale))
        if self.float8 is not None and self.mla and scales != (1.0, 1.0):
            # SGLang's GPU kernels write the MLA cache at scale 1 and multiply by k_scale on reading.
            raise ValueError(
                f"layer {layer.layer_id} has an MLA KV scale of {scales[0]:g}; SGLang writes that cache at "
                "scale 1, so only 1.0 is right: remove the k_scale tensors from the checkpoint"
            )
        if self.layout_pool is not None and scales != (1.0, 1.0):
            raise ValueError(
                f"layer {layer.layer_id} has k_scale {scales[0]:g} and v_scale {scales[1]:g}, and layout "
                f"{self.layout_pool.name} brings scales of its own: serve them with --kv-cache-dtype alone"
            )
        if self.float8 is not None:
            logger.info("layer %d: k_scale %g, v_scale %g", layer.layer_id, *scales)


def _descale(scale: torch.Tensor | float | None) -> float:
    """A layer's scale as a float; unset (None, or still the initial -1) is 1."""
    value = 1.0 if scale is None else float(scale)
    return value if value > 0 else 1.0
