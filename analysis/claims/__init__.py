"""Which claims of the paper hold here: rules of config/claims.yaml, judged one by one."""
