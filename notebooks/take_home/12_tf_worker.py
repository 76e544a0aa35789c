"""Train with TensorFlow on one machine or several: a worker on each, which takes all of its GPUs. TensorFlow and NumPy,
nothing else.

    python 12_tf_worker.py
    python 12_tf_worker.py --workers first:12345 second:12345 --index 0
    sbatch 12_tf_worker.sbatch

Every worker gets the same list of addresses and its own index; under Slurm the index is SLURM_PROCID. To make it yours,
replace the data and the model. `--batch-size` is for all replicas of all workers together. Started again, it goes on
with the epoch after the last one that was saved.
"""

import argparse
import json
import os
import tempfile

import numpy as np

CLASSES, SAMPLES = 10, 4000


def connect(workers, index):
    """Tell TensorFlow who the workers are, before it makes a strategy."""
    if len(workers) > 1:
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        os.environ["TF_CONFIG"] = json.dumps(config)


def points(epoch, batch_size):
    """Points around ten centres, in a new order in each epoch: a stand-in for your own data set."""
    import tensorflow as tf

    numbers = np.random.default_rng(0)
    labels = numbers.integers(CLASSES, size=SAMPLES)
    x = numbers.normal(size=(CLASSES, 32))[labels] + 2 * numbers.normal(size=(SAMPLES, 32))
    order = np.random.default_rng(epoch).permutation(SAMPLES)
    data = tf.data.Dataset.from_tensor_slices((x[order].astype("float32"), labels[order]))
    options = tf.data.Options()  # workers share out the samples, not the files they lie in
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.batch(batch_size, drop_remainder=True).with_options(options)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", nargs="*", default=[], help="host:port of each, the same list everywhere")
    parser.add_argument("--index", type=int, default=int(os.environ.get("SLURM_PROCID", 0)))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--out", default="12_tf_worker", help="a folder that all workers see")
    args = parser.parse_args()
    connect(args.workers, args.index)

    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # waits for the other workers
    with strategy.scope():
        layers = [tf.keras.layers.Input((32,)), tf.keras.layers.Dense(128, "relu"), tf.keras.layers.Dense(CLASSES)]
        model = tf.keras.Sequential(layers)
        model.set_weights([np.random.default_rng(i).normal(0, 0.1, w.shape) for i, w in enumerate(model.get_weights())])
        optimizer = tf.keras.optimizers.Adam(3e-3)
        optimizer.build(model.trainable_variables)
        epoch = tf.Variable(0, dtype=tf.int64)
    loss_of_each = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    # All workers save, and only the first one's files are kept.
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
    place = args.out if args.index == 0 else tempfile.mkdtemp()
    manager = tf.train.CheckpointManager(checkpoint, place, max_to_keep=2)
    if newest := tf.train.latest_checkpoint(args.out):
        checkpoint.restore(newest)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            each = loss_of_each(y, model(x, training=True))
            loss = tf.nn.compute_average_loss(each, global_batch_size=args.batch_size)  # gradients are summed
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    first = int(epoch.numpy())
    for number in range(first, args.epochs):
        losses = [step(batch) for batch in strategy.experimental_distribute_dataset(points(number, args.batch_size))]
        epoch.assign(number + 1)
        manager.save()
        if args.index == 0:
            mean = float(tf.add_n(losses)) / len(losses)
            print(f"epoch {number}: loss {mean:.4f} on {strategy.num_replicas_in_sync} replicas, saved", flush=True)
    if args.index == 0:
        total = sum(float(np.sum(w, dtype=np.float64)) for w in model.get_weights())
        print(f"began with epoch {first}, the weights' sum is {total!r}", flush=True)


if __name__ == "__main__":
    main()
