"""The image as a pure function: artifacts -> entries -> layer bytes -> diff IDs -> image ID. Nothing here touches the world."""
