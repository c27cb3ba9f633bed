"""Generated speech: log-mel frames, in which a letter always sounds alike, and transcripts."""

from pathlib import Path

import numpy as np

from models.data.base import Dataset

FRAMES_PER_S, MELS = 100, 80
LETTERS = 28  # a to z, space, apostrophe; numbered from 1, as 0 is CTC's blank
SHORTEST_S, USUAL_S, LONGEST_S = 2, 6, 16


class Speech(Dataset):
    """Utterances of 2 to 16 s; a sample is a second of audio, and `classes` counts CTC's blank.

    `resident` returns "frames", float16 [f, MELS], one utterance after the other; "lengths", int64
    [n], the frames of each utterance; and "letters", uint8 [n, longest], padded with 0.
    """

    name = "speech"
    nominal = generated_size = 8192

    @classmethod
    def generate(cls, folder: Path, train: int, seed: int) -> None:
        voice = np.random.default_rng([seed, 0])
        # A letter has three formants, each a bump over some bands.
        centres = voice.uniform(0, MELS, (LETTERS, 3, 1))
        widths = voice.uniform(2, 5, (LETTERS, 3, 1))
        sounds = 4 * np.exp(-(((np.arange(MELS) - centres) / widths) ** 2)).sum(1)
        rng, utterances = np.random.default_rng([seed, 1]), []
        missing_frames = train * FRAMES_PER_S
        while missing_frames > 0:
            frames, letters = utterance(sounds, rng)
            utterances.append((frames, letters))
            missing_frames -= len(frames)
        longest = max(len(letters) for _, letters in utterances)
        padded = [np.pad(letters, (0, longest - len(letters))) for _, letters in utterances]
        np.save(folder / "train_frames.npy", np.concatenate([frames for frames, _ in utterances]))
        np.save(folder / "train_lengths.npy", np.array([len(frames) for frames, _ in utterances]))
        np.save(folder / "train_letters.npy", np.stack(padded))

    def count(self) -> dict[str, int]:
        frames = int(np.load(self.data / "train_lengths.npy").sum())
        return {"classes": LETTERS + 1, "train_size": frames // FRAMES_PER_S}

    def resident(self, input_size: int, samples: int) -> dict[str, np.ndarray]:
        lengths = np.load(self.data / "train_lengths.npy")
        lengths = lengths[: max((lengths.cumsum() <= samples * FRAMES_PER_S).sum(), 1)]
        frames = np.load(self.data / "train_frames.npy", mmap_mode="r")[: lengths.sum()]
        letters = np.load(self.data / "train_letters.npy")[: len(lengths)]
        return {"frames": frames, "lengths": lengths, "letters": letters}


def utterance(sounds: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """One utterance: frames float16 [f, MELS] and letters uint8.

    Each letter sounds for 60 to 100 ms; sounds [LETTERS, MELS]. Neighbouring letters run into one
    another; loudness, the pitch of the voice and noise vary.
    """
    frames = round(rng.triangular(SHORTEST_S, USUAL_S, LONGEST_S) * FRAMES_PER_S)
    durations = rng.integers(6, 11, frames // 8)
    durations = durations[durations.cumsum() <= frames]
    letters = rng.integers(1, LETTERS + 1, len(durations))
    sound = np.roll(sounds, rng.integers(-2, 3), axis=1)[np.repeat(letters - 1, durations)]
    sound = np.pad(sound, ((1, frames + 1 - len(sound)), (0, 0)))
    sound = (sound[:-2] + sound[1:-1] + sound[2:]) / 3 * rng.uniform(0.7, 1.3)
    noisy = sound + rng.normal(0, 0.5, sound.shape)
    return noisy.astype(np.float16), letters.astype(np.uint8)
