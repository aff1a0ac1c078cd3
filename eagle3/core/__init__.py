"""Pure data and rules, light to import: no torch, no textual, no asyncssh."""
