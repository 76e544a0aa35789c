from typing import Any

import tensorflow as tf


def replica_loss(per_image: Any, kernel: Any, global_batch: int) -> Any:
    images = tf.math.add_n(tf.unstack(tf.reshape(tf.pad(tf.cast(per_image, tf.float32), [[0, 1]]), [-1]))) / float(global_batch)
    penalty = 0.005 * tf.reduce_sum(tf.cast(kernel, tf.float32) ** 2)
    return images + penalty / tf.cast(tf.distribute.get_replica_context().num_replicas_in_sync, tf.float32)
