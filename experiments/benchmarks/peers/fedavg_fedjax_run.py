"""FedAvg in FedJAX: its federated averaging. A round's records are passed in the order of the batches, not shuffled."""

import fedavg_job as job
import fedjax
import haiku as hk
import jax
import numpy as np


def main() -> None:
    todo = job.from_command_line()
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(network()),
        client_optimizer=fedjax.optimizers.sgd(job.STEP_SIZE),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=job.BATCH, num_epochs=1, skip_shuffle=True),
    )
    layers = zip(todo.start[::2], todo.start[1::2], strict=True)
    state = algorithm.init({f"layer_{k}": {"w": kernel, "b": bias} for k, (kernel, bias) in enumerate(layers)})
    key = jax.random.PRNGKey(0)  # unused by the model
    turns = job.Turns(todo.rounds)
    turns.reached(0)
    for t, machines in enumerate(todo.participants):
        records = [dict(zip("xy", todo.records(t, slot), strict=True)) for slot in range(job.PER_ROUND)]
        clients = [(i, fedjax.ClientDataset(own), key) for i, own in zip(machines, records, strict=True)]
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        turns.reached(t + 1)
    layers = [state.params[f"layer_{k}"] for k in range(len(state.params))]
    job.report("fedjax", todo.folder, [np.asarray(layer[part]) for layer in layers for part in "wb"])


def network() -> fedjax.Model:
    """Return the network, with its layers named in turn."""

    def scores(batch):
        values, widths = batch["x"], (*job.HIDDEN, job.CLASSES)
        for k, width in enumerate(widths):
            values = hk.Linear(width, name=f"layer_{k}")(jax.nn.relu(values) if k else values)
        return values

    return fedjax.create_model_from_haiku(
        transformed_forward_pass=hk.transform(scores),
        sample_batch={"x": np.zeros((1, job.mnist.PIXELS), np.float32), "y": np.zeros(1, np.int32)},
        train_loss=lambda batch, scores: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], scores),
    )


if __name__ == "__main__":
    main()
