"""Scikit-learn's handwritten digits with a small convolution network.

python examples/digits.py                     one process
mpirun -np 2 python examples/digits.py        two ranks, the same training
"""

import click
import fittrain
import keras
from fittrain import callbacks
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def build() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.25),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


@click.command()
@click.option("--run-dir", default="runs/digits")
@click.option("--epochs", default=20)
@click.option("--backend", default="auto")
def main(run_dir: str, epochs: int, backend: str) -> None:
    x, y = load_digits(return_X_y=True)
    x = x.reshape(-1, 8, 8, 1) / 16.0
    x, x_held_out, y, y_held_out = train_test_split(x, y, test_size=0.2, random_state=7)
    trainer = fittrain.Trainer(
        build,
        optimizer=keras.optimizers.Adam(2e-3),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        backend=backend,
        run_dir=run_dir,
        seed=7,
    )
    trainer.fit(
        x, y, batch_size=64, epochs=epochs,
        validation_data=(x_held_out, y_held_out),
        callbacks=[callbacks.TensorBoard()],
    )  # fmt: skip
    accuracy = trainer.evaluate(x_held_out, y_held_out, verbose=0)[1]
    trainer.save(f"{run_dir}/model.keras")
    if fittrain.is_chief():
        print(f"validation accuracy {accuracy:.4f} on {fittrain.size()} rank(s)")


if __name__ == "__main__":
    main()
