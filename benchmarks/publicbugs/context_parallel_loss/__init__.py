"""NovaSky-AI/SkyRL#1420."""
