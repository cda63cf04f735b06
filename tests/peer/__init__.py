"""The public package ``softs``, in a virtual environment and in processes of its own."""
