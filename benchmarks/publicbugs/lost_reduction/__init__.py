"""NovaSky-AI/SkyRL#1886."""
