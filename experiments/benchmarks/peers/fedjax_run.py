"""The job in FedJAX: its federated averaging with one local SGD step on one example, noise added to the gradient."""

import fedjax
import haiku as hk
import jax
import job
import numpy as np


def main() -> None:
    todo = job.from_command_line(__doc__)
    rounds, noise_std, step_size, seed = todo.settings
    model = softmax_regression()
    gradient = fedjax.model_grad(model)

    def noisy_gradient(params, batch, key):
        clean = gradient(params, batch, key)
        leaves, structure = jax.tree_util.tree_flatten(clean)
        keys = jax.random.split(key, len(leaves))
        noisy = [g + noise_std * jax.random.normal(k, g.shape) for g, k in zip(leaves, keys, strict=True)]
        return jax.tree_util.tree_unflatten(structure, noisy)

    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        noisy_gradient if noise_std else gradient,
        client_optimizer=fedjax.optimizers.sgd(step_size),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=1, num_epochs=1),
    )
    federation = fedjax.InMemoryFederatedData({i: {"x": x, "y": y} for i, (x, y) in enumerate(todo.shares)})
    machines = dict(federation.clients())
    state = algorithm.init(jax.tree_util.tree_map(np.zeros_like, model.init(jax.random.PRNGKey(0))))
    clock = job.Clock(rounds)
    key = jax.random.PRNGKey(seed)
    for t in range(rounds):
        keys = np.asarray(jax.random.split(jax.random.fold_in(key, t), job.PER_ROUND))
        turns = zip(todo.participants[t], todo.turns[t], keys, strict=True)
        state, _ = algorithm.apply(state, [(i, machines[i][k : k + 1], own) for i, k, own in turns])
        if t + 1 in (job.WARM_UP, rounds):
            jax.block_until_ready(state.params)
        clock.done(t + 1)
    job.report("fedjax", clock.seconds_per_round, np.asarray(jax.tree_util.tree_leaves(state.params)[0]))


def softmax_regression() -> fedjax.Model:
    """A linear layer on images that hold a constant 1, so without a bias of its own."""
    return fedjax.create_model_from_haiku(
        transformed_forward_pass=hk.transform(lambda batch: hk.Linear(job.CLASSES, with_bias=False)(batch["x"])),
        sample_batch={"x": np.zeros((1, job.FEATURES), np.float32), "y": np.zeros(1, np.int32)},
        train_loss=lambda batch, scores: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], scores),
    )


if __name__ == "__main__":
    main()
