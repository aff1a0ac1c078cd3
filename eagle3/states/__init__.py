"""What a file of hidden states must be, how it is stored, and which samples have none. ``eagle3.store`` is the folder of them."""
