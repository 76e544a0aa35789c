"""Lesson 04's task for TensorFlow, without torch: its network with its first weights, and the pictures in the order in
which DDP draws them. Cells import it as `keras_task`."""

import os
import warnings
from pathlib import Path

import numpy as np

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # TensorFlow's C++ side: fatal errors only
_kept, _nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
os.dup2(_nowhere, 2)  # it writes two lines before it reads that variable
try:
    import tensorflow as tf
finally:
    os.dup2(_kept, 2)
    os.close(_kept)
    os.close(_nowhere)

from course_utils.rank import report  # noqa: E402

warnings.filterwarnings("ignore", message=".shuffle=True. was passed")  # fit's default, though nobody passed it
tf.config.experimental.enable_tensor_float_32_execution(False)  # as in the other programs
_start = np.load(Path(__file__).with_name("start.npz"))
images = ((_start["images"].transpose(0, 2, 3, 1) / 255 - 0.5) / 0.25).astype("float32")  # channels come last here
labels = _start["labels"]


def make_model():
    """The network of lesson 04. A kernel has its dimensions in another order here, and so has a picture."""
    layers = tf.keras.layers
    blocks = []
    for channels, stride in ((16, 1), (32, 2), (64, 1), (64, 2), (64, 1), (64, 2)):
        convolution = layers.Conv2D(channels, 3, stride, use_bias=False)
        blocks += [layers.ZeroPadding2D(1), convolution, layers.GroupNormalization(8, epsilon=1e-5), layers.ReLU()]
    head = [layers.Permute((3, 1, 2)), layers.Flatten(), layers.Dense(100)]  # flattened as torch does: channels first
    model = tf.keras.Sequential([layers.Input((32, 32, 3)), *blocks, *head])
    weights = [_start[f"arr_{i}"] for i in range(len(model.weights))]
    model.set_weights([w.transpose(2, 3, 1, 0) if w.ndim == 4 else w.T for w in weights])
    return model


def devices(replicas=2):
    """The GPUs, if there are two or more and TensorFlow was built for them; otherwise the CPU, cut into eight logical
    devices, of which so many are returned. Call it before anything computes."""
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) < 2:
        tf.config.set_visible_devices([], "GPU")
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 8)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    return [f"GPU:{i}" for i in range(len(gpus))] if len(gpus) > 1 else [f"CPU:{i}" for i in range(replicas)]


def one_device(number):
    """Leave this worker one GPU, if there is one for it, and one thread."""
    tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[number:][:1], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(1)


def make_data(batch):
    """Batches of all replicas together. Several workers share out the pictures, not the files they lie in."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch, drop_remainder=True).with_options(options)


class Losses(tf.keras.callbacks.Callback):
    """Reports the loss of each step. Keras's own is the mean since the epoch began."""

    def on_train_batch_end(self, batch, logs=None):
        report(loss=float(logs["loss"]))
        self.model.reset_metrics()
