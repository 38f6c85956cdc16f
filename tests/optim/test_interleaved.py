"""One optimizer of many parameters against one optimizer each, bit for bit, whatever happens between the steps."""
from __future__ import annotations

import copy
import pickle
import random

import numpy as np
import pytest

import ruda_optim as ro
import ruda_tensor as rt
from ruda_nn import Module, Param
from ruda_optim import AdamConfig, AdamWConfig, Fp32MasterOptimizer, GradientsAccumulator, GradientsParams, TrainingRecord

from ._helpers import param

MAKERS = {
    "sgd": lambda: ro.SgdConfig(momentum=0.9, nesterov=True, weight_decay=0.1).init(),
    "adam": lambda: AdamConfig(amsgrad=True, grad_clipping=ro.GradientClippingConfig.value(0.3)).init(),
    "adamw": lambda: AdamWConfig(cautious_weight_decay=True, weight_decay=0.5).init(),
    "adan": lambda: ro.AdanConfig(weight_decay=0.1).init(),
    "rmsprop masters": lambda: Fp32MasterOptimizer(ro.RmsPropConfig(momentum=0.5).build()).with_gradient_scale(4.0).init(),
    "fused masters": lambda: AdamWConfig(fused_step=True).init(),
}
SHAPES = [(), (1,), (0,), (3, 4), (50,), (9000,), (20_000,)]
CONSTANT = ro.ConstantLrSchedulerConfig(0.1)


class Many(Module):
    params_: list[Param]


class Story:
    """A model in training to which things happen, and for each parameter a model and an optimizer of its own."""

    def __init__(self, name, seed, device):
        self.make, self.masters, self.device = MAKERS[name], "masters" in name, device
        self.may_retype = "fused" not in name
        self.dice, self.rng = random.Random(seed), np.random.default_rng(seed)
        self.dtypes = [rt.float32, rt.bfloat16, rt.float16 if self.masters else rt.float64]
        shapes = [self.dice.choice(SHAPES) for _ in range(self.dice.randint(2, 7))]
        made = [param(self.rng.standard_normal(s), self.dice.choice(self.dtypes), device) for s in shapes]
        self.alone, self.alone_by = [Many([p.copy()]) for p in made], [self.make() for _ in made]
        self.count, self.kept = len(made), []
        self.model, self.optimizer = Many(made + made[:1] * self.dice.randint(0, 1)), self.make()  # the first may be tied

    def happen(self):
        """Do one of the things that users do between steps."""
        i, at = self.dice.randrange(self.count), self.dice.randrange(10)
        model, key = self.model, self.model.params_[i].id
        if at == 0:
            self.model = model.clone()
        elif at == 1 and self.may_retype:
            dtype = self.dice.choice(self.dtypes)
            self.model, self.alone[i] = model.to_dtype_selected(dtype, [key]), self.alone[i].to_dtype(dtype)
        elif at == 2:
            flag = not model.params_[i].trainable
            self.model = model.map(lambda p: p.set_require_grad(flag) if p.id == key else p)
        elif at == 3:
            self.optimizer = copy.deepcopy(self.optimizer)
        elif at == 4:
            self.model, self.optimizer = pickle.loads(pickle.dumps((model, self.optimizer)))
        elif at == 5:
            record = TrainingRecord.capture_with_dtypes(model, self.optimizer, CONSTANT.init(), GradientsAccumulator())
            back = record.restore_with_dtypes(model.clone(), self.make(), CONSTANT.init(), self.device)
            self.model, self.optimizer = back.model, back.optimizer
        elif at == 6:
            self.model = model.valid().train()

    def look(self):
        """Keep some of what a user may hold of the parameters, which no later step may change."""
        for p in self.model.params_:
            x = p.detach()
            ways = [lambda x=x: x, lambda x=x: x.reshape((-1,))[1:], lambda x=x: x.reshape((-1, 1)).T, lambda x=x: x * 2.0]
            if x.size and self.dice.random() < 0.25:
                held = self.dice.choice(ways)()
                self.kept.append((held, held.numpy().copy()))
        if self.dice.random() < 0.3:
            self.kept = self.kept[len(self.kept) // 2 :]

    def step(self):
        given = {}
        for i, p in enumerate(self.model.params_[: self.count]):
            if self.dice.random() < 0.75:
                dtype = p.dtype if p.dtype == rt.float64 else self.dice.choice([p.dtype, rt.float32])
                given[i] = rt.tensor(self.rng.standard_normal(p.shape), dtype=dtype, device=self.device)
        gradients = GradientsParams({self.model.params_[i]: g for i, g in given.items()})
        before = {key: gradients[key].numpy().tobytes() for key in gradients}
        used = [i for i in given if self.model.params_[i].trainable]
        self.model = self.optimizer.step(0.03, self.model, gradients)
        assert {key: gradients[key].numpy().tobytes() for key in gradients} == before
        for i in used:
            mine = GradientsParams({self.alone[i].params_[0]: given[i]})
            self.alone[i] = self.alone_by[i].step(0.03, self.alone[i], mine)

    def check(self):
        for p, other in zip(self.model.params_, self.alone):
            assert (p.dtype, p.numpy().tobytes()) == (other.params_[0].dtype, other.params_[0].numpy().tobytes())
        assert self.model.params_[-1] is self.model.params_[0] or len(self.model.params_) == self.count
        for held, values in self.kept:
            assert held.numpy().tobytes() == values.tobytes()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", MAKERS)
def test_many_parameters_are_updated_as_each_would_be_alone(name, seed, device):
    story = Story(name, seed, device)
    for _ in range(10):
        story.happen()
        story.look()
        story.step()
        story.check()
    assert story.kept
