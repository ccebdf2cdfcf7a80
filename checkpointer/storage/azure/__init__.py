"""Azure Blob Storage and Data Lake."""
