"""Why a launch failed: which rank was first, where the others stood, what the exception means, and what helps."""
