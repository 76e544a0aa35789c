from typing import Any

import tensorflow as tf


def replica_loss(per_image: Any, kernel: Any, global_batch: int) -> Any:
    """The loss of one replica, a scalar; summed over all replicas it is the loss of the step.

    per_image  the loss of each image of this replica, [n]
    kernel     the weights that are penalised
    """
    penalty = 0.01 * tf.nn.l2_loss(kernel)
    return tf.nn.compute_average_loss(per_image, global_batch_size=global_batch) + tf.nn.scale_regularization_loss(penalty)
