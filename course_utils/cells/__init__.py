"""What a cell can write: `%%ranks` and `%%exercise`, Tab and help in them, claims, and `import lesson_04`."""
