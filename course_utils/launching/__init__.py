"""From the arguments of `launch` to a `Run`: start the ranks, watch them, show what they say, gather what they leave.

Three kinds of process take part, and each has its files here: the kernel (this folder, and `under_the_cell`), the
supervisor of a launch (`supervisor`), and each rank (`on_rank`). ARCHITECTURE.md has them as a picture."""
