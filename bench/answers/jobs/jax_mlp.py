"""A residual network of dense layers in JAX, which reports its steps by the hook."""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several share the GPU

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from truth import scaled, tick  # noqa: E402

from models.hook import step  # noqa: E402

BATCH, WIDTH, DEPTH = scaled((512, 1024, 6), (16, 32, 2))
RATE = 1e-3


def loss_of(weights, inputs, targets):
    hidden = inputs
    for weight in weights:
        hidden = hidden + jax.nn.gelu(hidden @ weight)
    return jnp.square(hidden - targets).mean()


@jax.jit
def train_step(weights, key):
    """One step of gradient descent on fresh noise, whose targets are its sines."""
    inputs = jax.random.normal(key, (BATCH, WIDTH))
    loss, slopes = jax.value_and_grad(loss_of)(weights, inputs, jnp.sin(3 * inputs))
    return [w - RATE * slope for w, slope in zip(weights, slopes, strict=True)], loss


def main():
    key = jax.random.PRNGKey(0)
    weights = [
        jax.random.normal(each, (WIDTH, WIDTH)) / WIDTH for each in jax.random.split(key, DEPTH)
    ]
    for number in range(100_000_000):
        key, now = jax.random.split(key)
        weights, loss = train_step(weights, now)
        loss.block_until_ready()
        step(loss=loss)
        tick()
        if number % 5000 == 0:
            print(f"step {number} loss {float(loss):.4f}", flush=True)


if __name__ == "__main__":
    main()
