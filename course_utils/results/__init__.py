"""What came back: the `Run` of a launch, measurements with their spread and origin, timelines, tables of others."""
