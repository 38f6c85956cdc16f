"""Which mode a model is in, wherever it goes."""
from __future__ import annotations

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import DropoutConfig, LinearConfig, Sequential
from ruda_optim import ConstantLrSchedulerConfig, GradientsAccumulator, SgdConfig, TrainingRecord


def test_what_a_recording_device_wakes_up_is_in_training_mode():
    """A model made on a plain device and restored onto a recording one would else train without dropout, unnoticed."""
    records, plain = Autodiff(rt.Cpu()), Sequential(LinearConfig(2, 2).init(rt.Cpu()), DropoutConfig(0.5).init(rt.Cpu()))
    awake = plain.fork(records)
    assert awake[1].training and not plain.fork(rt.Cpu())[1].training and not plain[1].training
    assert awake.valid().fork(records)[1].training and DropoutConfig().init(rt.Cpu()).fork(records).training
    chosen = awake.map(lambda p: p, training=False)  # tracked, and without dropout: somebody's choice
    assert not chosen.fork(records)[1].training and not awake.valid().no_grad().fork(records)[1].training
    parts = SgdConfig().init(), ConstantLrSchedulerConfig(0.1).init()
    record = TrainingRecord.capture(awake, *parts, GradientsAccumulator())
    assert record.restore(plain, *parts, records).model[1].training
