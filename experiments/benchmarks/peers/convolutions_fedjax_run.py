"""FedAvg of a convolutional network in FedJAX. A turn is one round from the first weights."""

import convolutions_job as job
import fedjax
import haiku as hk
import jax
import numpy as np


def main() -> None:
    given = job.arguments()
    with np.load(given.folder / "job.npz") as file:
        pictures, labels = file["pictures"], file["labels"]
        start = [file[f"arr_{k}"] for k in range(2 * len(job.LAYERS))]
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(network()),
        client_optimizer=fedjax.optimizers.sgd(job.STEP_SIZE),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=job.BATCH, num_epochs=1, skip_shuffle=True),
    )
    parts = zip(job.LAYERS, start[::2], start[1::2], strict=True)
    first = algorithm.init({name: {"w": kernel, "b": bias} for name, kernel, bias in parts})
    key = jax.random.PRNGKey(0)  # unused by the model
    records = [fedjax.ClientDataset({"x": x, "y": y}) for x, y in zip(pictures, labels, strict=True)]
    clients = [(i, own, key) for i, own in enumerate(records)]
    turns = job.turns(given)
    turns.reached(0)
    for done in range(1, given.rounds + 1):
        state, _ = algorithm.apply(first, clients)
        jax.block_until_ready(state.params)
        turns.reached(done)
    weights = [np.asarray(state.params[name][part]) for name in job.LAYERS for part in "wb"]
    job.report(given, "fedjax", weights)


def network() -> fedjax.Model:
    """Return the network, with layers named as in flax."""

    def scores(batch):
        values = batch["x"]
        for place, width in enumerate(job.CHANNELS):
            values = jax.nn.relu(hk.Conv2D(width, 3, name=f"Conv_{place}")(values))
            values = hk.max_pool(values, (2, 2, 1), (2, 2, 1), "VALID")
        values = jax.nn.relu(hk.Linear(job.HIDDEN, name="Dense_1")(values.reshape(len(values), -1)))
        return hk.Linear(job.CLASSES, name="Dense_0")(values)

    return fedjax.create_model_from_haiku(
        transformed_forward_pass=hk.transform(scores),
        sample_batch={"x": np.zeros((1, 28, 28, 1), np.float32), "y": np.zeros(1, np.int32)},
        train_loss=lambda batch, scores: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], scores),
    )


if __name__ == "__main__":
    main()
