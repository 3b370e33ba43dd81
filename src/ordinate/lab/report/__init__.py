"""What reads records and says what they show. Nothing here trains."""
