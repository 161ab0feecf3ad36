"""The benchmark measures what it says: errors, the plan, a whole small run, the report."""

import json
import pathlib
import re
import shutil
import subprocess

import pytest
import torch

from ingot.bench import __main__ as cli
from ingot.bench import demo, driver, limits, models, report


def test_error_is_relative_to_the_largest_element():
    exact = [torch.tensor([0.0, 4.0], dtype=torch.float64)]
    assert models.error([torch.tensor([0.0, 4.0])], exact) == 0
    assert models.error([torch.tensor([1.0, 4.0])], exact) == 0.25
    assert models.error([torch.tensor([float("nan"), 4.0])], exact) == float("inf")
    assert models.error([torch.zeros(3)], exact) == float("inf")
    assert models.error([], exact) == float("inf")


def test_reference_uses_the_rounded_numbers():
    plain = models.build("trig-toy", 1, "bf16")
    exact = models.build("trig-toy", 1, "bf16", reference=True)
    assert exact.args[0].dtype == torch.float64
    assert torch.equal(plain.args[0].double(), exact.args[0])


def test_models_are_the_same_in_every_process():
    one, other = models.build("resnet18", 2, "fp32"), models.build("resnet18", 2, "fp32")
    assert torch.equal(one.args[0], other.args[0]) and one.args[0].shape[0] == 2
    for a, b in zip(one.module.parameters(), other.module.parameters(), strict=True):
        assert torch.equal(a, b)
    norm = one.module.bn1
    assert norm.running_mean.any() and not one.module.training


def test_names_of_the_libraries_are_found():
    for name in ("shufflenet_v2_x0_5", "timm/resnet10t", "transformers/albert", "RobertaConfig"):
        assert callable(models.find(name))
    with pytest.raises(LookupError, match="no_such_model"):
        models.find("no_such_model")


def test_main_list_has_bf16_for_two_models():
    settings = cli._parse(["--models", "main", "--batch", "1,8", "--dtype", "fp32,bf16"])
    triples = cli.plan_of(settings)
    assert len(triples) == 2 * len(models.MAIN) + 2 * len(models.LOW_PRECISION)
    assert {name for name, _, dtype in triples if dtype == "bf16"} == {"vit-b16", "bert-base"}


def test_sentences_come_from_the_readme():
    sentences = demo.readme_sentences()
    readme = pathlib.Path(__file__).parents[2] / "README.md"
    # Links count with their text, as the demo reads them.
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(readme.read_text().split()))
    assert len(sentences) >= 8
    assert all(s.replace("`", "") in text.replace("`", "") for s in sentences)


def test_whole_run(tmp_path, capsys):
    table, picture = tmp_path / "figures.json", tmp_path / "ratios.png"
    arguments = ["--models", "trig-toy", "--against", "eager", "--rounds", "2", "--no-warm",
                 "--json", str(table), "--plot", str(picture)]  # fmt: skip
    assert cli.main(arguments) == 0
    printed = capsys.readouterr().out
    record = json.loads(table.read_text())["records"][0]
    eager, ours = record["rivals"]
    assert (eager["rival"], ours["rival"]) == ("eager", "ingot")
    for one in (eager, ours):
        assert not one["failed"] and one["median_ms"] > 0 and one["peak_mib"] > 50
        assert 0 < one["second_s"] < 60
        assert len(one["round_medians_ms"]) == 2 and 0 < one["error"] < 1e-4
    assert eager["speedup"] == 1 and ours["graphs"] == 1
    assert f"{ours['median_ms']:.2f}" in printed
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_a_rival_that_fails_is_reported_and_the_others_go_on(tmp_path):
    plan = driver.Plan(rounds=1, warm=False)
    record = driver.measure("trig-toy", 1, "bf16", ["eager", "onnxruntime"], plan)
    eager, foreign = record["rivals"]
    assert eager["median_ms"] > 0
    assert "fp32 only" in foreign["failed"] and foreign["median_ms"] is None
    assert "fp32 only" in report.rows(record)


def test_a_worker_that_dies_is_reported(tmp_path):
    process = driver.Process(str(tmp_path), None)
    process._process.kill()
    process._process.wait()
    with pytest.raises(driver.WorkerFailed, match="died"):
        process.ask("first")
    process.close()


def test_geometric_mean_over_the_best():
    def record(**speeds):
        return {"rivals": [{"rival": k, "speedup": v} for k, v in speeds.items()]}

    records = [record(eager=1.0, inductor=2.0, ingot=4.0), record(eager=1.0, inductor=0.5, ingot=8)]
    assert report.geometric_mean(records, "ingot", ["eager", "inductor"]) == pytest.approx(4.0)
    assert report.geometric_mean(records, "openvino", ["eager"]) is None


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_loop_of_the_peak_keeps_all_its_chains():
    # A chain that starts at its fixed point is dropped, and the peak then comes out too high.
    if " fma " not in pathlib.Path("/proc/cpuinfo").read_text():
        pytest.skip("needs multiply-adds")
    command = ["gcc", *limits._OPTIONS, "-S", "-o", "-", "-x", "c", "-"]
    text = subprocess.run(command, input=limits._PEAK, text=True, capture_output=True, check=True)
    assert text.stdout.count("vfmadd") >= 12


def test_limits_of_the_machine_and_their_line():
    machine = limits.Machine()
    assert 1e8 < machine.copy_bandwidth() < 1e13
    peak = machine.fma_peak()
    assert peak is None or 1e9 < peak < 1e14
    row = {"name": "softmax", "unit": "GB/s", "value": 30.0, "eager": 10.0, "limit": 40.0}
    line = limits.show(row | {"share": 0.75})
    assert "softmax" in line and "75% of the limit" in line and "30.00" in line


def test_call_cost_measures_the_program_alone():
    alone, guarded = limits.call_cost(calls=200, seconds=0.05)
    assert 0 < alone["value"] < guarded["value"]
