"""Reports for the tests: one of each verdict, and one that is not finished. Made-up numbers."""

import dataclasses

from equipoise.reports.model import (
    Arm,
    Attempt,
    CompletedRow,
    Control,
    Divergence,
    EndpointRow,
    ErrorSample,
    Excerpt,
    Exclusion,
    FirstDifference,
    Flip,
    Flips,
    Interval,
    LengthRow,
    LogprobRow,
    LogprobTrace,
    Missing,
    ModelReport,
    NoiseFloor,
    NoiseRow,
    ParityDifference,
    PooledRow,
    PositionBucket,
    Power,
    PowerRow,
    Provenance,
    Reply,
    Report,
    Run,
    Secondary,
    SubgroupRow,
    TaskRow,
    TrendRow,
)

TANGO, MOVER = "Tango score", "MOVER over tasks"


def task(
    name: str, lost: int, gained: int, verdict: str, *, n: int = 400, half: float = 0.019, **more
) -> TaskRow:
    delta = (gained - lost) / n
    baseline = 0.9125
    values = {
        "task": name,
        "critical": n >= 400,
        "n": n,
        "verdict": verdict,
        "accuracy_baseline": baseline,
        "accuracy_candidate": baseline + delta,
        "delta": delta,
        "interval": Interval(lo=delta - half * 1.1, hi=delta + half, method=TANGO),
        "margin": 0.05,
        "lost": lost,
        "gained": gained,
        "p_non_inferiority": 0.00003 if delta > -0.02 else 0.41234567,
        "p_equivalence": 0.0213456 if delta > -0.02 else 0.71,
        "p_mcnemar": 0.2891 if delta > -0.02 else 0.00031,
        "p_mid": 0.21006 if delta > -0.02 else 0.00022,
        "p_alarm": 1.0 if delta > -0.02 else 0.0012,
        "p_truncation_alarm": 1.0,
        "truncation_baseline": 0.0,
        "truncation_candidate": 0.0025,
        "smallest_detectable_loss": 0.0234,
    }
    return TaskRow(**(values | more))


def pooled(delta: float, verdict: str, *, half: float = 0.0085, **more) -> PooledRow:
    values = {
        "n_tasks": 6,
        "n": 1800,
        "verdict": verdict,
        "accuracy_baseline": 0.8731,
        "accuracy_candidate": 0.8731 + delta,
        "delta": delta,
        "interval": Interval(lo=delta - half, hi=delta + half, method=MOVER),
        "margin": 0.025,
        "lost": 31,
        "gained": 25,
        "p_non_inferiority": 0.0004,
        "p_equivalence": 0.0019,
        "smallest_detectable_loss": 0.0182,
    }
    return PooledRow(**(values | more))


def divergence(**more) -> Divergence:
    values = {
        "tokens": 12288,
        "tokens_without_lists": 0,
        "kl_nats": 0.0049,
        "interval": Interval(lo=0.0034, hi=0.0074, method="bounds of KL from top-k lists"),
        "complete": False,
        "ceiling_nats": 0.0077,
        "max_drop_nats": 20.0,
        "truncated_baseline_mean": 1.5e-05,
        "truncated_baseline_max": 0.0047,
        "truncated_candidate_mean": 1.4e-05,
        "truncated_candidate_max": 0.0040,
        "gate_nats": 0.01,
        "noise_nats": 0.0,
    }
    return Divergence(**(values | more))


NO_CEILING = divergence(
    ceiling_nats=None,
    max_drop_nats=None,
    gate_nats=None,
    undefined={"ceiling_nats": "top-k lists bound KL from below only"},
)


def logprob(status: str = "passed", delta: float = 0.0051, kl: Divergence | None = NO_CEILING) -> LogprobRow:
    return LogprobRow(
        task="forced_text",
        critical=False,
        sequences=48,
        tokens=12288,
        status=status,
        delta_nll_nats=delta,
        interval=Interval(lo=delta - 0.0012, hi=delta + 0.0013, method="cluster bootstrap"),
        gate_nats=0.01,
        noise_nats=0.0,
        top1_agreement=0.9871,
        abs_delta_logprob_nats={"p50": 0.0031, "p90": 0.0312, "p99": 0.2104, "max": 1.9042},
        buckets=(
            PositionBucket(
                start=0,
                end=128,
                tokens=6144,
                sequences=1,
                delta_nll_nats=0.0032,
                interval=Interval(lo=None, hi=None),
                undefined={"interval": "one sequence shows no spread between sequences"},
            ),
            PositionBucket(
                start=128,
                end=None,
                tokens=6144,
                sequences=48,
                delta_nll_nats=0.0071,
                interval=Interval(lo=0.0049, hi=0.0093),
                abs_delta_logprob_nats={"p50": 0.0034, "p99": 0.2301, "max": 1.9042},
                kl_nats=0.0068,
                kl_interval=Interval(lo=0.0051, hi=0.0087),
            ),
        ),
        cache_read=True,
        kl=kl,
    )


def noise_floor() -> NoiseFloor:
    return NoiseFloor(
        n=1800,
        lost=4,
        gained=5,
        p=1.0,
        passed=True,
        excess_discordance=0.0261,
        excess_interval=Interval(lo=0.0192, hi=0.0334, method="item bootstrap"),
        delta=0.0006,
        interval=Interval(lo=-0.0023, hi=0.0034, method=MOVER),
        tasks=(NoiseRow(task="kv_recall", n=400, lost=2, gained=1, p=1.0),),
    )


def controls(*, caught: bool = True) -> tuple[Control, ...]:
    gross = Control(
        arm="P",
        strength="gross",
        variant="kv_int4_per_tensor",
        required=True,
        caught=caught,
        delta=-0.1042 if caught else -0.0123,
        interval=Interval(lo=-0.1187, hi=-0.0901) if caught else Interval(lo=-0.0211, hi=-0.0031),
        task_verdicts={"kv_recall": "DEGRADED", "sort": "DEGRADED", "brackets": "NON-INFERIOR"},
        task_deltas={"kv_recall": -0.1825, "sort": -0.1075, "brackets": -0.005},
        blind_tasks=("brackets",),
        reason="" if caught else "its pooled mean is not DEGRADED",
    )
    mild = Control(
        arm="M",
        strength="mild",
        variant="kv_int4_per_token",
        required=False,
        caught=False,
        delta=-0.0412,
        interval=Interval(lo=-0.0523, hi=-0.0301),
    )
    return gross, mild


def secondary(*, warnings: tuple[str, ...] = ()) -> Secondary:
    def fault(name: str, endpoint: str, baseline: int, candidate: int, p: float) -> EndpointRow:
        return EndpointRow(
            task=name,
            endpoint=endpoint,
            n=400,
            baseline=baseline,
            candidate=candidate,
            baseline_rate=baseline / 400,
            candidate_rate=candidate / 400,
            baseline_only=0,
            candidate_only=candidate - baseline,
            p=p,
            p_adjusted=min(1.0, 6 * p),
            method="McNemar test",
            examples=tuple(f"{name}-{i:05d}" for i in range(17, 17 + min(candidate - baseline, 5))),
        )

    def subgroup(stratum: str, label: str, n: int, delta: float, p: float) -> SubgroupRow:
        return SubgroupRow(
            task="kv_recall",
            stratum=stratum,
            label=label,
            n=n,
            accuracy_baseline=0.91,
            accuracy_candidate=0.91 + delta,
            delta=delta,
            interval=Interval(lo=delta - 0.031, hi=delta + 0.027, method=TANGO),
            p=p,
            p_adjusted=min(1.0, 4 * p),
        )

    lengths = Interval(lo=1.0123, hi=1.0731, level=0.95, method="ratio of means")
    return Secondary(
        warnings=warnings,
        endpoints=(
            fault("kv_recall", "truncated", 1, 9, 0.0078),
            fault("kv_recall", "not extracted", 0, 1, 1.0),
            fault("kv_recall", "loop", 0, 7, 0.0156),
            fault("sort", "truncated", 0, 0, 1.0),
            fault("sort", "not extracted", 0, 0, 1.0),
            fault("sort", "loop", 0, 0, 1.0),
        ),
        completed=(
            CompletedRow(
                task="kv_recall",
                n=391,
                delta=-0.0051,
                interval=Interval(lo=-0.0262, hi=0.0149, method=TANGO),
            ),
            CompletedRow(task="sort", n=400, delta=0.0025, interval=None),
        ),
        lengths=(
            LengthRow(
                task="kv_recall",
                n=400,
                unknown=0,
                baseline_mean=19.08,
                candidate_mean=19.87,
                ratio=1.0414,
                interval=lengths,
                geometric_ratio=1.0021,
                geometric_interval=Interval(lo=0.9991, hi=1.0052, level=0.95),
                ended_n=391,
                ended_ratio=1.0013,
                ended_interval=Interval(lo=0.9979, hi=1.0046, level=0.95),
                p=0.0057,
                p_adjusted=0.0228,
                method="ratio of means",
            ),
            LengthRow(
                task="sort",
                n=400,
                unknown=0,
                baseline_mean=10.1,
                candidate_mean=10.1,
                ratio=1.0,
                interval=None,
                geometric_ratio=1.0,
                p=1.0,
                p_adjusted=1.0,
                undefined={"interval": "every item has the same ratio"},
            ),
        ),
        trends=(
            TrendRow(
                name="tasks by length of prompt",
                n=1800,
                p=0.5034,
                p_loss=0.2517,
                strata=13,
                strata_losing=5,
                strata_gaining=3,
                method="stratified sign-flip test",
            ),
            TrendRow(name="longer prompts", n=1788, p=0.0312, p_loss=0.0156, slope=-0.0251, unknown=12),
        ),
        subgroups=(
            subgroup("prompt tokens", "128-255", 92, -0.0217, 0.5),
            subgroup("prompt tokens", "256-511", 108, 0.0185, 0.5),
            subgroup("turns", "3", 55, -0.0545, 0.25),
            subgroup("turns", "4", 61, 0.0, 1.0),
            subgroup("turns", "5", 60, -0.0167, 1.0),
            subgroup("turns", "6", 24, 0.0417, 1.0),
        ),
        subgroups_too_small=2,
    )


def flips() -> Flips:
    prompt = "key 17 = 4921; key 3 = 1180; " * 20 + "what is key 17?"

    def reply(answer: str, right: bool) -> Reply:
        return Reply(
            text=Excerpt.of(f"Key 17 is in the first line, so its value is {answer}", 1_500),
            thinking=Excerpt.of("The user asks for key 17. It was given at the start."),
            score=float(right),
            truncated=len(answer) > 10,
            tokens=len(answer),
        )

    def flip(direction: str, item: str, baseline: str, candidate: str) -> Flip:
        trace = LogprobTrace(
            start=10,
            baseline=(-0.01, -0.02, -0.61, -0.2),
            candidate=(-0.01, -0.03, -0.79),
            baseline_tokens=(" ", "49", "21", "<|im_end|>"),
            candidate_tokens=(" ", "49", "12"),
        )
        return Flip(
            task="kv_recall",
            item_id=item,
            direction=direction,
            prompt=Excerpt.of(prompt),
            target=Excerpt.of("4921"),
            baseline=Excerpt.of(baseline),
            candidate=Excerpt.of(candidate),
            baseline_finish="stop",
            candidate_finish="length" if len(candidate) > 10 else "stop",
            baseline_reply=reply(baseline, direction == "lost"),
            candidate_reply=reply(candidate, direction == "gained"),
            difference=FirstDifference(part="answer", char=47, token=12, trace=trace),
        )

    return Flips(
        lost=31,
        gained=25,
        shown=(
            flip("lost", "kv_recall-00017", "4921", "4912"),
            flip("lost", "kv_recall-00231", "4921", "4 9 4 9 " * 300),
            flip("gained", "kv_recall-00101", "1180", "4921"),
        ),
    )


def model(
    name: str, verdict: str | None, sentence: str, tasks, pool: PooledRow | None, **more
) -> ModelReport:
    values = {
        "name": name,
        "verdict": verdict,
        "sentence": sentence,
        "tasks": tasks,
        "pooled": pool,
        "worst_case_verdict": "EQUIVALENT",
        "logprobs": (logprob(),),
        "noise_floor": noise_floor(),
        "controls": controls(),
        "power": Power(
            assumed_loss=0.005,
            joint=0.912,
            pooled=0.981,
            tasks=(
                PowerRow(
                    task="kv_recall", n=400, predicted_power=0.991, p_d_assumed=0.045, p_d_observed=0.0525
                ),
            ),
        ),
        "missing": (Missing(arm="A1", planned=1800, missing=0), Missing(arm="B", planned=1800, missing=0)),
        "flips": flips(),
        "secondary": secondary(),
    }
    return ModelReport(**(values | more))


def run(state: str, verdict: str | None, exit_code: int, headline: str, **more) -> Run:
    values = {
        "plan_name": "embedded",
        "plan_hash": "sha256:4f1e0c9b7a6d5e4f3a2b1c0d9e8f7a6b",
        "run_id": "embedded-20260101-101500",
        "created": "2026-01-01T10:29:03Z",
        "state": state,
        "verdict": verdict,
        "exit_code": exit_code,
        "headline": headline,
        "pairs": 3600,
        "suite_margin": 0.025,
        "smallest_detectable_loss": 0.0182,
        "attempts": ()
        if verdict is None
        else (attempt("embedded-20260101-101500", 1, "2026-01-01T10:15:02+00:00", verdict, current=True),),
        "attempts_bound": None if verdict is None else 0.05,
        "limits": (
            "It was measured on CPU: this says nothing about the GPU kernels of a production server.",
            "Losses smaller than the margin are not excluded.",
            "Only the tasks listed were tested; other prompts, longer contexts and other loads may differ.",
        ),
    }
    return Run(**(values | more))


def attempt(run_id: str, number: int | None, registered: str, outcome: str, **more) -> Attempt:
    values = {
        "model": "kimi-tiny",
        "run_id": run_id,
        "number": number,
        "registered": registered,
        "plan_hash": "4f1e0c9b7a6d5e4f3a2b1c0d9e8f7a6b",
        "outcome": outcome,
        "alpha": 0.05,
    }
    return Attempt(**(values | more))


EARLIER_ATTEMPTS = (
    attempt("embedded-20251203-090000", None, "2025-12-03T09:01:12+00:00", "SIGNED OFF"),
    attempt("embedded-20251229-170000", 1, "2025-12-29T17:01:12+00:00", "unfinished"),
)


def provenance() -> Provenance:
    def arm(model: str, name: str, role: str, variant: str, dtype: str, control: str = "") -> Arm:
        command = ("python", "-m", "sglang.launch_server", "--model-path", model, "--kv-cache-dtype", dtype)
        return Arm(
            model=model,
            name=name,
            role=role,
            variant=variant,
            server_command=command,
            kv_cache_dtype=dtype,
            attention_backend="equipoise_cpu",
            max_total_tokens=65536,
            control=control,
            explained=(
                f"KV {dtype}, layout fp8_flat, 1,728 bytes a token; prefill torch_native, "
                "decode torch_native",
                "scales of layers 0-2: default 1.0",
            )
            if dtype.startswith("fp8")
            else (),
        )

    return Provenance(
        plan_path="tasks/plans/embedded.toml",
        models={"kimi-tiny": "embedded:kimi-tiny sha256:77aa", "glm-tiny": "embedded:glm-tiny sha256:88bb"},
        arms=(
            arm("kimi-tiny", "A1", "baseline", "bf16", "bfloat16"),
            arm("kimi-tiny", "A2", "baseline_repeat", "bf16", "bfloat16"),
            arm("kimi-tiny", "B", "candidate", "kv_fp8_e4m3", "fp8_e4m3"),
            arm("kimi-tiny", "P", "gross_control", "kv_int4_per_tensor", "fp8_e4m3", "int4 per tensor"),
        ),
        parity_differences=(
            ParityDifference(
                model="kimi-tiny",
                fact="kv_cache_dtype",
                baseline="bfloat16",
                candidate="fp8_e4m3",
                allowed_by="the comparison itself",
            ),
        ),
        versions={"equipoise": "0.1.0", "sglang": "0.5.23", "torch": "2.13.0", "python": "3.11.9"},
        hardware={"cpu": "2 cores", "memory": "24 GiB"},
        seeds={"items": 1, "schedule": 1, "bootstrap": 1},
        git_commit="79db58f",
        git_dirty=False,
        started="2026-01-01T10:15:00Z",
        finished="2026-01-01T10:28:44Z",
        duration_s=824.0,
        requests=18120,
        retries=3,
        command="equipoise run tasks/plans/embedded.toml --out runs/embedded",
    )


GOOD_TASKS = (
    task("kv_recall", 12, 9, "EQUIVALENT", smallest_detectable_loss=0.0311),
    task("sort", 7, 8, "EQUIVALENT"),
    task("multi_turn", 5, 4, "EQUIVALENT", half=0.013),
    task("copy", 1, 1, "EQUIVALENT", n=200, half=0.013),
    task("brackets", 3, 2, "NON-INFERIOR", n=200, half=0.056, blind=True),
    task("addition", 3, 1, "EQUIVALENT", n=200, half=0.025),
)
GOOD = "no critical task and no pooled mean loses more than its margin"


def signed_off() -> Report:
    models = tuple(
        model(
            name,
            "SIGNED OFF",
            f"fp8_e4m3 answers like bf16 on {name}",
            GOOD_TASKS,
            pooled(-0.0033, "EQUIVALENT"),
        )
        for name in ("kimi-tiny", "glm-tiny")
    )
    head = "fp8_e4m3 KV is in equipoise with bf16 on both models"
    return Report(
        run=run("final", "SIGNED OFF", 0, head, indistinguishable=True),
        models=models,
        provenance=provenance(),
    )


def degraded() -> Report:
    tasks = (
        task("kv_recall", 81, 8, "DEGRADED", half=0.034, reason="U = -14.9 points is below -5.00"),
        *GOOD_TASKS[1:],
    )
    bad = model(
        "kimi-tiny",
        "DEGRADED",
        "kv_recall and the pooled mean lose more than the margin",
        tasks,
        pooled(-0.104, "DEGRADED"),
        logprobs=(
            logprob(
                "failed",
                0.0402,
                kl=divergence(
                    kl_nats=0.0611,
                    interval=Interval(lo=0.0532, hi=0.0718),
                    ceiling_nats=0.0724,
                    noise_nats=0.0001,
                ),
            ),
            dataclasses.replace(
                logprob(kl=divergence(complete=True, max_drop_nats=None)), task="forced_small_vocabulary"
            ),
        ),
    )
    fine = signed_off().models[1]
    why = ("kimi-tiny: kv_recall is DEGRADED", "kimi-tiny: the pooled mean is DEGRADED")
    head = "kv_int4_per_tensor loses more than the margin on kimi-tiny"
    return Report(
        run=run("final", "DEGRADED", 1, head, reasons=why), models=(bad, fine), provenance=provenance()
    )


def inconclusive() -> Report:
    decide = "about 2,300 items of kv_recall at the observed discordance of 5.3% and loss of 2.75 points"
    tasks = (
        task(
            "kv_recall", 20, 9, "INCONCLUSIVE", half=0.024, reason="L is not above -5.00", would_decide=decide
        ),
        task("sort", 16, 3, "SUSPECT", half=0.024, reason="the loss alarm rejects"),
        task(
            "multi_turn",
            14,
            2,
            "DETECTED-WITHIN-MARGIN",
            half=0.018,
            reason="a real loss, smaller than the margin",
        ),
        *GOOD_TASKS[3:],
    )
    one = model(
        "kimi-tiny",
        "INCONCLUSIVE",
        "kv_recall may lose more than the margin",
        tasks,
        pooled(-0.012, "NON-INFERIOR"),
    )
    head = "a loss of more than 5.00 points on kv_recall cannot be excluded"
    return Report(
        run=run(
            "final",
            "INCONCLUSIVE",
            3,
            head,
            would_decide=(decide,),
            reasons=("kv_recall is INCONCLUSIVE",),
            attempts=(
                *EARLIER_ATTEMPTS,
                attempt(
                    "embedded-20260101-101500",
                    2,
                    "2026-01-01T10:15:02+00:00",
                    "INCONCLUSIVE",
                    plan_hash="77aa0c9b7a6d5e4f3a2b1c0d9e8f7a6b",
                    alpha=0.025,
                    current=True,
                ),
            ),
            max_attempts=2,
            attempts_bound=0.075,
        ),
        models=(one,),
        provenance=provenance(),
    )


def invalid() -> Report:
    row = task(
        "kv_recall",
        2,
        1,
        "INVALID",
        n=213,
        critical=True,
        reason="46.8% of the candidate's answers are missing",
        interval=Interval(lo=float("nan"), hi=float("nan"), method=TANGO),
        delta=None,
        undefined={"delta": "too few pairs to claim anything"},
    )
    one = model(
        "kimi-tiny",
        "INVALID",
        "the gross control was not caught, and answers are missing",
        (row, *GOOD_TASKS[1:]),
        pooled(-0.002, "INVALID", smallest_detectable_loss=None),
        controls=controls(caught=False),
        worst_case_verdict="DEGRADED",
        secondary=secondary(
            warnings=(
                "kv_recall: the grader found nothing in 34.2% of the baseline's answers; the grader or the "
                "prompt may not fit",
            )
        ),
        missing=(Missing(arm="A1", planned=1800, missing=0), Missing(arm="B", planned=1800, missing=187)),
        exclusions=(Exclusion(task="kv_recall", arm="B", reason="time-out after 4 attempts", count=187),),
        errors_total=187,
        errors=(
            ErrorSample(
                arm="B",
                task="kv_recall",
                item_id="kv_recall-00004",
                message="HTTP 503 from http://127.0.0.1:30001",
            ),
        ),
        logprobs=(
            dataclasses.replace(
                logprob("cache not read", kl=None),
                cache_read=False,
                top1_agreement=None,
                undefined={"kl": "the servers' lists of likely tokens were not recorded"},
            ),
        ),
    )
    why = ("the gross control was not caught", "10.4% of the answers of arm B are missing (allowed: 0.5%)")
    return Report(
        run=run(
            "final",
            "INVALID",
            4,
            "this run could not have said no",
            reasons=why,
            smallest_detectable_loss=None,
        ),
        models=(one,),
        provenance=provenance(),
    )


def incomplete() -> Report:
    one = model(
        "kimi-tiny",
        None,
        "812 of 1,800 items are answered by every arm",
        (),
        None,
        controls=(),
        flips=None,
        secondary=None,
        noise_floor=None,
        power=None,
        logprobs=(),
        missing=(),
        worst_case_verdict=None,
    )
    head = "the run was interrupted after 45% of its requests; continue it with --resume"
    return Report(
        run=run("incomplete", None, 4, head, pairs=812, smallest_detectable_loss=None),
        models=(one,),
        provenance=provenance(),
    )


REPORTS = {
    "signed_off": signed_off,
    "degraded": degraded,
    "inconclusive": inconclusive,
    "invalid": invalid,
    "incomplete": incomplete,
}
