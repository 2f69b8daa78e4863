"""The live asyncio driver of the gate."""
