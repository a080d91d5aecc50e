"""KV that is still on its way when a step begins: each layer is waited for before it is used."""

import numpy as np
import pytest
import torch

from phloem.model_runner import ModelRunner

PROMPT = [5, 9, 200, 31, 7]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_layer_that_comes_when_it_is_asked_for_comes_in_time(drive, tiny_model, overlap):
    driver = drive(tiny_model)
    pool = driver.pool
    driver.run((0, PROMPT, 5))
    expected = driver.run((0, [8], 6)).token_ids.tolist()
    slots = torch.from_numpy(driver.table[0, :5].astype(np.int64))
    on_the_way = [pool.read(slots, layer) for layer in range(pool.num_layers)]
    driver.spoil(slots)
    asked = []

    def ready(layer):
        asked.append(layer)
        pool.write(slots, layer, on_the_way[layer])

    with ModelRunner(tiny_model, pool, driver.table, overlap=overlap, layer_ready=ready) as runner:
        step = runner.forward(driver.batch((0, [8], 6)))
        runner.sample(step, None)
        assert runner.result(step).token_ids.tolist() == expected
    assert asked == list(range(pool.num_layers))


def test_a_layer_that_cannot_come_fails_the_step(drive, tiny_model):
    driver = drive(tiny_model)

    def ready(layer):
        raise RuntimeError("the copy failed")

    with ModelRunner(tiny_model, driver.pool, driver.table, layer_ready=ready) as runner:
        step = runner.forward(driver.batch((0, PROMPT, 5)))
        runner.sample(step, None)
        with pytest.raises(RuntimeError, match="the copy failed"):
            runner.result(step)
