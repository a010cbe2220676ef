"""A client for container registries: names of images, credentials, tokens, and images, blobs and referrers by digest."""
